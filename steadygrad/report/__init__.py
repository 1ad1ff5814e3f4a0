"""Result files → tables and figures. Imports no torch, so results can be read where nothing was trained."""
