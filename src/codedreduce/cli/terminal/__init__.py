"""What all commands share: the terminal, options, error texts, and files that the user names.

`console` writes, `typer_errors` rewords the errors of Typer, `options` parses shared options,
`output_files` checks and writes files, `comparison_output` shows schemes side by side. Imports no command.
"""
