// The search reads a leading hyphen as "without this word", so `--allow-net` would find nothing. Drop the hyphens from
// the queries, which are the only messages to the search worker whose data is a string.
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = typeof message?.data === "string";
  send.call(this, isQuery ? { ...message, data: message.data.replace(/(^|\s)-+/g, "$1") } : message, ...rest);
};
