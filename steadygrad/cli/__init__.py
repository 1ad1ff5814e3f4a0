"""The command line `steadygrad`: one module per verb, each calls one library function."""
