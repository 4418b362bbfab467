"""Logs of any program around a distributed job -> events. One file in `families` for each program that prints."""
