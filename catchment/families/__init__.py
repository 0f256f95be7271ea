"""What several methods share: the exchange of weights, of predictions, of features."""
