"""Lesson 12: schedules of a pipeline, its stages, and figures of both."""
