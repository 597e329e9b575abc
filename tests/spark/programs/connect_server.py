"""A server of Spark Connect."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_session import session

session(
    "local[2]",
    spark_plugins="org.apache.spark.sql.connect.SparkConnectPlugin",
    spark_connect_grpc_binding_port=sys.argv[1],
)
print("up", flush=True)
import threading

threading.Event().wait()
