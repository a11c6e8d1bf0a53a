"""Views, diagnoses and reports that the command line shows, independent of its output format."""
