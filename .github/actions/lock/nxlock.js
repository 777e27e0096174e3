// How both parts of the action call nxlock, and report that it failed.

'use strict';

const { spawn } = require('node:child_process');

// Returns an input of the action, as the runner passes it.
function input(name) {
    return (process.env[`INPUT_${name.toUpperCase()}`] ?? '').trim();
}

// Calls nxlock, which has to be in PATH. Returns its status, how it has ended in words, and what it has printed; its
// messages go to the log of the job.
function nxlock(words, stdin = '') {
    const env = { ...process.env };
    // Not as an argument, which every user of the machine sees.
    if (input('server') !== '') {
        env.NXLOCK_SERVER = input('server');
    }
    // A runner that cancels a job signals this process alone. nxlock then leaves the queue, or gives back what it has. A
    // signal is handled after this function has returned: there is a child by then.
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
        process.on(signal, () => child.kill(signal));
    }
    const child = spawn('nxlock', words, { env, stdio: ['pipe', 'pipe', 'inherit'] });
    let stdout = '';
    child.stdout.setEncoding('utf8').on('data', (text) => (stdout += text));
    // It may end without having read.
    child.stdin.on('error', () => {}).end(stdin);
    return new Promise((resolve) => {
        child.on('error', ({ message }) => resolve({ status: 127, ended: message, stdout }));
        child.on('close', (status, signal) => resolve({ status, ended: signal ?? `status ${status}`, stdout }));
    });
}

// Fails the step with a message that the page of the run shows.
function complain(message, status) {
    const escaped = message.replace(/%/g, '%25').replace(/\r/g, '%0D').replace(/\n/g, '%0A');
    console.log(`::error title=nxlock::${escaped}`);
    process.exitCode = status ?? 1;
}

module.exports = { complain, input, nxlock };
