"""What Spark needs of the machine: a Java, and the jars of the table format."""
