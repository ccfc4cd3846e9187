"""Configuration: one declaration per key, from which parser, reference file, schema and checks are derived."""
