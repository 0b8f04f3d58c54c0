// nsqjs as a program, with the arguments of tests/java/NsqClient.java:
// publish HOST PORT COMPRESSION TOPIC, or consume HOST PORT COMPRESSION TOPIC CHANNEL COUNT; messages are lines of base64.
const nsq = require('nsqjs')
const readline = require('readline')

const BATCH = 500
const [mode, host, port, compression, topic, channel, count] = process.argv.slice(2)
const options = { deflate: compression === 'deflate', snappy: compression === 'snappy' }

const fail = (error) => {
  process.stderr.write(`${error}\n`)
  process.exit(1)
}

const publish = async () => {
  const messages = []
  for await (const line of readline.createInterface({ input: process.stdin })) {
    messages.push(Buffer.from(line, 'base64'))
  }
  const writer = new nsq.Writer(host, Number(port), options)
  writer.on('error', fail)
  const send = (batch) => new Promise((resolve, reject) =>
    writer.publish(topic, batch, (error) => (error ? reject(error) : resolve())))
  writer.on('ready', async () => {
    const whole = messages.length - (messages.length % BATCH)
    for (let start = 0; start < whole; start += BATCH) {
      await send(messages.slice(start, start + BATCH))
    }
    // The last ones singly: PUB is a command of its own.
    for (const message of messages.slice(whole)) {
      await send(message)
    }
    writer.on('closed', () => process.exit(0))
    writer.close()
  })
  writer.connect()
}

const consume = () => {
  let left = Number(count)
  const found = []
  const reader = new nsq.Reader(topic, channel, {
    ...options,
    nsqdTCPAddresses: `${host}:${port}`,
    maxInFlight: 200,
  })
  reader.on('error', fail)
  reader.on('message', (message) => {
    found.push(message.body.toString('base64'))
    message.finish()
    left -= 1
    if (left === 0) {
      // nsqjs does not tell when the last FIN is written.
      setTimeout(() => process.stdout.write(found.join('\n') + '\n', () => process.exit(0)), 300)
    }
  })
  reader.connect()
}

if (mode === 'publish') {
  publish().catch(fail)
} else {
  consume()
}
