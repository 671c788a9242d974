"""Pipelines, partitioned operators and planners: schedules are data, planners are pure, operators yield collectives."""
