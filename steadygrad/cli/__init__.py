"""The command `steadygrad`: one file a verb, each calls one library function."""
