// Replace the calls of node that Windows denies in an AppContainer with their documented denials:
// GetFinalPathNameByHandleW, the drive's root, libuv's pipes with global names, and NUL.
// Only the directory CORRAL_GRANTED can be read.
"use strict";
const childProcess = require("child_process");
const fs = require("fs");
const net = require("net");
const path = require("path");

const granted = process.env.CORRAL_GRANTED;
const PIPES = "\\\\.\\pipe\\LOCAL\\";
const denied = (call, name) => {
  throw Object.assign(new Error(`EPERM: operation not permitted, ${call} '${name}'`), { code: "EPERM" });
};
const refuse = (call) => (name) => denied(call, name);
const replace = (object, name, make) => (object[name] = make(object[name]));

replace(fs, "lstatSync", (real) => (name, ...more) =>
  (String(name) + path.sep).startsWith(granted + path.sep) ? real(name, ...more) : denied("lstat", name));
replace(fs, "realpathSync", () => Object.assign(refuse("realpath"), { native: refuse("realpath") }));
replace(fs, "realpath", () => (name, callback) => callback(Object.assign(new Error("EPERM"), { code: "EPERM" })));
fs.realpath.native = fs.realpath;
replace(fs.promises, "realpath", () => async (name) => denied("realpath", name));

// Imitate named pipes with socket files. Opening a pipe connects to its socket file.
const socketPath = (name) => `${granted}/${name.slice(PIPES.length)}`;
const sockets = new Map();
replace(net.Server.prototype, "listen", (real) => function (name, ...more) {
  return real.call(this, String(name).startsWith(PIPES) ? socketPath(name) : name, ...more);
});
replace(fs, "openSync", (real) => (name, ...more) => {
  if (name === "\\\\.\\NUL") return denied("open", name);
  if (!String(name).startsWith(PIPES)) return real(name, ...more);
  const socket = net.connect(socketPath(name));
  socket.on("error", () => {});
  sockets.set(socket._handle.fd, socket);
  return socket._handle.fd;
});
replace(fs, "closeSync", (real) => (descriptor) =>
  sockets.has(descriptor) ? sockets.get(descriptor).destroy() : real(descriptor));

const check = (stdio) => {
  const slots = Array.isArray(stdio) ? stdio : Array(3).fill(stdio || "pipe");
  for (const slot of slots) {
    if (slot === "pipe" || slot === undefined) denied("spin for ever in uv__pipe_server", slot);
    if (slot === "ignore") denied("spawn", "NUL");
  }
};
for (const [object, name] of [[childProcess.ChildProcess.prototype, "spawn"], [childProcess, "spawnSync"]])
  replace(object, name, (real) => function (...words) {
    check(words[words.length - 1]?.stdio);
    return real.apply(this, words);
  });
for (const name of ["execFileSync", "execSync"]) replace(childProcess, name, () => refuse(name));
