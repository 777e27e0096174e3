// Gives the lock back at the end of the job, whatever has ended it. A lock that was lost meanwhile fails the job: steps
// have run without it.

'use strict';

const { complain, input, nxlock } = require('./nxlock.js');

async function post() {
    const token = process.env.STATE_token;
    // It was not granted.
    if (!token) {
        return;
    }
    const { status, ended } = await nxlock(['release', input('name'), '-'], token);
    if (status === 76) {
        complain(`"${input('name')}" was lost before the end of the job`, status);
    } else if (status !== 0) {
        complain(`"${input('name')}" was not released, and ends by itself: ${ended}`, status);
    }
}

post();
