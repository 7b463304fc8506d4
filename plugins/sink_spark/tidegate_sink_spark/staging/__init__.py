"""The log on its way: rows as Arrow, sealed into files that the job takes."""
