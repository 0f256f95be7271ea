"""Reports of runs: a table for the terminal or a document, and an HTML page. Reads files, needs no training code."""

from catchment.report.page import html_report, write_report
from catchment.report.showing import human_bytes, human_seconds
from catchment.report.tables import markdown_table, summary_table

__all__ = [
    "html_report",
    "human_bytes",
    "human_seconds",
    "markdown_table",
    "summary_table",
    "write_report",
]
