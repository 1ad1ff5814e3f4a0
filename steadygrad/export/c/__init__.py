"""Export of layers and models to one C file without dependencies: a traced time step becomes loops over arrays."""

from steadygrad.export.c.file import c_source as c_source
