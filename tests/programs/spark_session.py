"""A session of Spark."""


def session(master, **conf):
    from pyspark.sql import SparkSession

    build = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    build = build.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for name, value in conf.items():
        build = build.config(name.replace("_", "."), value)
    return build.getOrCreate()
