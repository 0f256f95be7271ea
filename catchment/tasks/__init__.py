"""Tasks: what labels, losses and measures are. They work on tensors, and know nothing of data sets or models."""

from catchment.tasks.classification import CLASSIFICATION, Classification
from catchment.tasks.detection import DETECTION, Detection
from catchment.tasks.task import Label, Rows, Score, Task

TASKS: dict[str, Task] = {task.name: task for task in (CLASSIFICATION, DETECTION)}
"""The built-in tasks by name."""

__all__ = ["CLASSIFICATION", "DETECTION", "TASKS", "Classification", "Detection", "Label", "Rows", "Score", "Task"]
