"""Logs of any program around a distributed job -> events. One table in `lines` for each program that prints."""
