"""The log on its way: rows as Arrow, sealed into files for the job."""
