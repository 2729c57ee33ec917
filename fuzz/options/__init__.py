"""Random files of each family over what its framework can be asked for: what it reads is what we read, and back.

    make(choose, folder) -> Case     one random file, written by the framework or as its format allows
    Case.read(path)                  what the framework reads, under our names; anything raised is a refusal
    Case.back                        where we write what we read, in the same format, for the framework to read again
    REFUSED                          patterns of our errors and notes: what we do not read though the framework does, and why
    LENIENT                          patterns of the framework's errors: what it does not read though we do, and why

A family is a module here. Whatever differs, and each refusal that no pattern explains, is a finding.
"""  # noqa: E501

FAMILIES = ("hdf5", "tf")
