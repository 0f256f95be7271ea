"""What a run will cost, and which method to take, before anything is trained."""
