"""Studies: tables of experiments, run with seeds, compared with intervals, shown as tables and pages."""
