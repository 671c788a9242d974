"""From records to answers: statistics, tables, figures and the report.

Reads `results` and nothing else, so every number shown can be made again from the records alone.
"""
