// The search reads a leading hyphen as "without this word", so `--allow-net` would find nothing. Drop the hyphen from
// the queries that go to the search worker. 2 is the type of a query.
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = message?.type === 2 && typeof message.data === "string";
  send.call(this, isQuery ? { ...message, data: message.data.replace(/(^|\s)-+/g, "$1") } : message, ...rest);
};
