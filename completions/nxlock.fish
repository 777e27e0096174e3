# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_nxlock_global_optspecs
    string join \n s/server= prefix= config= password-file= tls-ca= tls-cert= tls-key= server-timeout= json q/quiet v/verbose color= h/help V/version
end

function __fish_nxlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_nxlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_nxlock_using_subcommand
    set -l cmd (__fish_nxlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c nxlock -n "__fish_nxlock_needs_command" -s s -l server -d 'Where the locks live: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine alone. Repeated for three or more: a majority of them decides' -r
complete -c nxlock -n "__fish_nxlock_needs_command" -l prefix -d 'What stands before NAME in the key' -r
complete -c nxlock -n "__fish_nxlock_needs_command" -l config -d 'Read the configuration from FILE, and from no other' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l password-file -d 'Take the server\'s password from the first line of FILE' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l tls-ca -d 'Trust a server that has a certificate of the authorities in FILE, instead of the system\'s' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l tls-cert -d 'Show the server the certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l tls-key -d 'The private key of that certificate' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l server-timeout -d 'Bound on one connect and on one reply' -r
complete -c nxlock -n "__fish_nxlock_needs_command" -l color -d 'Colour messages: auto (if they go to a terminal), always, or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_needs_command" -l json -d 'Give the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_needs_command" -s q -l quiet -d 'Say nothing but errors'
complete -c nxlock -n "__fish_nxlock_needs_command" -s v -l verbose -d 'Say what happens, with times'
complete -c nxlock -n "__fish_nxlock_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_needs_command" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "run" -d 'Hold a lock around a command'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "acquire" -d 'Take a lock and print its token'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "renew" -d 'Put a lock\'s expiry a full ttl from now'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "release" -d 'Give a lock back, or break somebody else\'s'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "status" -d 'Show who holds which lock'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "check" -d 'Find out whether the server is fit to keep locks'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l key -d 'The exact key, without prefix, in place of NAME: for scripts that fixed it long ago' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s t -l ttl -d 'The lease: how long the lock outlives a holder that cannot renew it' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s w -l wait -d 'Give up after D; 0 is the same as -n. Without either, wait for ever' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with N, 0 to 255, instead of 75 when somebody else has the lock' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l reason -d 'Shown to others in `status` and in their "held by" message' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l min-replicas -d 'Take the lock only once N replicas of the server have it' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l setnx-margin -d 'By how much such a time must have passed, by the server\'s clock, for --setnx-compat' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l events -d 'Tell FD, or append to FILE, what happens: one JSON object a line' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s c -l shell -d 'Run TEXT by `sh -c`; no further arguments' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l at-least -d 'Keep the name locked until D after it was granted, even if the command ends sooner' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l time-limit -d 'Stop the command after D, and exit with 124' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l kill-after -d 'How long a stopped command has between TERM and KILL' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l on-lost -d 'What to do when the lock is lost while the command runs' -r -f -a "stop\t'Stop the command and everything it started'
continue\t'Say so, and let it run on without the lock'"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l descendants -d 'What to do about processes that outlive a command which ended by itself' -r -f -a "leave\t'Give the lock back at once, and let them run on without it'
wait\t'Keep the lock until they are gone'
stop\t'Stop them, then give the lock back'"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s s -l server -d 'Where the locks live: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine alone. Repeated for three or more: a majority of them decides' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l prefix -d 'What stands before NAME in the key' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l config -d 'Read the configuration from FILE, and from no other' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l password-file -d 'Take the server\'s password from the first line of FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l tls-ca -d 'Trust a server that has a certificate of the authorities in FILE, instead of the system\'s' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l tls-cert -d 'Show the server the certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l tls-key -d 'The private key of that certificate' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l server-timeout -d 'Bound on one connect and on one reply' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l color -d 'Colour messages: auto (if they go to a terminal), always, or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s n -l no-wait -d 'Do not wait'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l no-queue -d 'Do not queue: poll as a plain `SET NX` client does, on an equal footing with such clients'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l setnx-compat -d 'Share the key with clients that keep the time at which their lock ends in it (`SETNX`, `GETSET`)'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l json -d 'Give the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s q -l quiet -d 'Say nothing but errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s v -l verbose -d 'Say what happens, with times'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l key -d 'The exact key, without prefix, in place of NAME: for scripts that fixed it long ago' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l while-pid -d 'Keep the lock until process PID ends, by a keeper in the background' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l lost-signal -d 'What PID is sent if the lock is lost: a signal by name or number, or `none`' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s t -l ttl -d 'How long the lock is needed; it ends by itself then. Not less than 100ms' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s w -l wait -d 'Give up after D; 0 is the same as -n. Without either, wait for ever' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s E -l conflict-exit-code -d 'Exit with N, 0 to 255, instead of 75 when somebody else has the lock' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l reason -d 'Shown to others in `status` and in their "held by" message' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l min-replicas -d 'Take the lock only once N replicas of the server have it' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l setnx-margin -d 'By how much such a time must have passed, by the server\'s clock, for --setnx-compat' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l events -d 'Tell FD, or append to FILE, what happens: one JSON object a line' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s s -l server -d 'Where the locks live: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine alone. Repeated for three or more: a majority of them decides' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l prefix -d 'What stands before NAME in the key' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l config -d 'Read the configuration from FILE, and from no other' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l password-file -d 'Take the server\'s password from the first line of FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l tls-ca -d 'Trust a server that has a certificate of the authorities in FILE, instead of the system\'s' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l tls-cert -d 'Show the server the certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l tls-key -d 'The private key of that certificate' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l server-timeout -d 'Bound on one connect and on one reply' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l color -d 'Colour messages: auto (if they go to a terminal), always, or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l export -d 'Print `export NXLOCK_NAME=... NXLOCK_TOKEN=... NXLOCK_FENCE=...`, quoted for `eval`'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s n -l no-wait -d 'Do not wait'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l no-queue -d 'Do not queue: poll as a plain `SET NX` client does, on an equal footing with such clients'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l setnx-compat -d 'Share the key with clients that keep the time at which their lock ends in it (`SETNX`, `GETSET`)'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l json -d 'Give the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s q -l quiet -d 'Say nothing but errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s v -l verbose -d 'Say what happens, with times'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l key -d 'The exact key, without prefix, in place of NAME: for scripts that fixed it long ago' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s t -l ttl -d 'How long the lock is needed from now. Not less than 100ms' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s s -l server -d 'Where the locks live: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine alone. Repeated for three or more: a majority of them decides' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l prefix -d 'What stands before NAME in the key' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l config -d 'Read the configuration from FILE, and from no other' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l password-file -d 'Take the server\'s password from the first line of FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l tls-ca -d 'Trust a server that has a certificate of the authorities in FILE, instead of the system\'s' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l tls-cert -d 'Show the server the certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l tls-key -d 'The private key of that certificate' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l server-timeout -d 'Bound on one connect and on one reply' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l color -d 'Colour messages: auto (if they go to a terminal), always, or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l json -d 'Give the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s q -l quiet -d 'Say nothing but errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s v -l verbose -d 'Say what happens, with times'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l key -d 'The exact key, without prefix, in place of NAME: for scripts that fixed it long ago' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l break -d 'Take the lock from the holder that `status` shows as ID' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s s -l server -d 'Where the locks live: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine alone. Repeated for three or more: a majority of them decides' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l prefix -d 'What stands before NAME in the key' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l config -d 'Read the configuration from FILE, and from no other' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l password-file -d 'Take the server\'s password from the first line of FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l tls-ca -d 'Trust a server that has a certificate of the authorities in FILE, instead of the system\'s' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l tls-cert -d 'Show the server the certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l tls-key -d 'The private key of that certificate' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l server-timeout -d 'Bound on one connect and on one reply' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l color -d 'Colour messages: auto (if they go to a terminal), always, or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l json -d 'Give the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s q -l quiet -d 'Say nothing but errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s v -l verbose -d 'Say what happens, with times'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l watch -d 'Keep the view live: look every D' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l key -d 'The exact key, without prefix, in place of NAME' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s s -l server -d 'Where the locks live: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine alone. Repeated for three or more: a majority of them decides' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l prefix -d 'What stands before NAME in the key' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l config -d 'Read the configuration from FILE, and from no other' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l password-file -d 'Take the server\'s password from the first line of FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l tls-ca -d 'Trust a server that has a certificate of the authorities in FILE, instead of the system\'s' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l tls-cert -d 'Show the server the certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l tls-key -d 'The private key of that certificate' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l server-timeout -d 'Bound on one connect and on one reply' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l color -d 'Colour messages: auto (if they go to a terminal), always, or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l json -d 'Give the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s q -l quiet -d 'Say nothing but errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s v -l verbose -d 'Say what happens, with times'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s s -l server -d 'Where the locks live: redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine alone. Repeated for three or more: a majority of them decides' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l prefix -d 'What stands before NAME in the key' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l config -d 'Read the configuration from FILE, and from no other' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l password-file -d 'Take the server\'s password from the first line of FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l tls-ca -d 'Trust a server that has a certificate of the authorities in FILE, instead of the system\'s' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l tls-cert -d 'Show the server the certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l tls-key -d 'The private key of that certificate' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l server-timeout -d 'Bound on one connect and on one reply' -r
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l color -d 'Colour messages: auto (if they go to a terminal), always, or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l json -d 'Give the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s q -l quiet -d 'Say nothing but errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s v -l verbose -d 'Say what happens, with times'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s V -l version -d 'Print version'

function __fish_nxlock_finds_names
    set -l words (commandline -opc)
    command -q $words[1]
    or return
    set -l word (commandline -ct | string unescape)
    set -g __fish_nxlock_names (command $words[1] complete-names $words "$word" 2>/dev/null </dev/null | string match -rv '^(~|%self)')
    set -q __fish_nxlock_names[1]
end

complete -c nxlock -n "__fish_nxlock_using_subcommand run acquire renew release status; and __fish_nxlock_finds_names" -f -a '$__fish_nxlock_names'
