"""Tests of Tenure and of its storages: conformance suite, simulation, chaos runs, mutants of the model, the demo."""
