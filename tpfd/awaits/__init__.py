"""The waiting side: completions are admitted, live sessions hand them on."""
