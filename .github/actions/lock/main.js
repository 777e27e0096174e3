// Takes the lock. A keeper in the background renews it for as long as the runner works on this job; post.js gives it back
// at the end.

'use strict';

const { execFileSync } = require('node:child_process');
const { appendFileSync } = require('node:fs');
const { complain, input, nxlock } = require('./nxlock.js');

// The process that runs the steps; in a container, the first process, which is there as long as the job.
const RUNNER = process.ppid || 1;

// Writes a line that GitHub reads. No value has more than one line: names and tokens have no control characters.
function set(file, name, value) {
    appendFileSync(process.env[file], `${name}=${value}\n`);
}

// Returns the variables that `acquire --export` sets, with their values. A shell knows how they are quoted; nobody signals it.
function exported(text) {
    const names = text.replace(/'[^']*'|"[^"]*"/g, '').match(/\bNXLOCK_\w+(?==)/g);
    const env = execFileSync('sh', ['-c', 'eval "$(cat)" && env'], { input: text, encoding: 'utf8' });
    return new Map(env.split('\n').map((line) => line.split(/=(.*)/)).filter(([name]) => names.includes(name)));
}

async function main() {
    const words = ['acquire', input('name'), '--export', '--while-pid', String(RUNNER), '--lost-signal', 'none'];
    for (const option of ['ttl', 'wait', 'reason']) {
        if (input(option) !== '') {
            words.push(`--${option}`, input(option));
        }
    }
    words.push(...input('options').split('\n').map((word) => word.trim()).filter((word) => word !== ''));
    const { status, ended, stdout } = await nxlock(words);
    if (status !== 0) {
        return complain(`"${input('name')}" was not granted (${ended}): the log of this step says why`, status);
    }
    const variables = exported(stdout);
    const token = variables.get('NXLOCK_TOKEN');
    console.log(`::add-mask::${token}`);
    set('GITHUB_STATE', 'token', token);
    set('GITHUB_OUTPUT', 'fence', variables.get('NXLOCK_FENCE') ?? '');
    // Among them NXLOCK_HELD: a step that asks for this lock is refused, since it would wait for its own job.
    variables.forEach((value, name) => set('GITHUB_ENV', name, value));
    console.log(`"${input('name')}" is held until the end of this job`);
}

main();
