"""Pipeline definitions: what a `pipeline.yaml` says, checked as a whole before anything runs. Pure."""
