"""Tests of this folder compute on one thread."""

from single_thread import one_thread as one_thread
