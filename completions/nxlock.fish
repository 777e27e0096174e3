# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_nxlock_global_optspecs
    string join \n s/server= prefix= config= password-file= password-command= tls-ca= tls-cert= tls-key= server-timeout= json q/quiet v/verbose color= h/help V/version
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

complete -c nxlock -n "__fish_nxlock_needs_command" -s s -l server -d 'Server that keeps the locks' -r -f
complete -c nxlock -n "__fish_nxlock_needs_command" -l prefix -d 'Prefix of the locks\' keys' -r -f
complete -c nxlock -n "__fish_nxlock_needs_command" -l config -d 'Read the configuration only from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l password-file -d 'Read the server\'s password from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l password-command -d 'Run CMD for the server\'s password' -r -f -a "(__fish_complete_command)"
complete -c nxlock -n "__fish_nxlock_needs_command" -l tls-ca -d 'Trust only the certificate authorities in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l tls-cert -d 'Present the client certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l tls-key -d 'Read the client certificate\'s key from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_needs_command" -l server-timeout -d 'Limit of each connect and each reply' -r -f
complete -c nxlock -n "__fish_nxlock_needs_command" -l color -d 'Use colours: auto, always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_needs_command" -l json -d 'Print the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_needs_command" -s q -l quiet -d 'Report only errors'
complete -c nxlock -n "__fish_nxlock_needs_command" -s v -l verbose -d 'Report each step, with the time elapsed'
complete -c nxlock -n "__fish_nxlock_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_needs_command" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "run" -d 'Hold a lock around a command'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "acquire" -d 'Acquire a lock and print its token'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "renew" -d 'Set a lock\'s expiry to a full ttl from now'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "release" -d 'Release a lock, or ask somebody else to, or break it'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "status" -d 'Show who holds which lock'
complete -c nxlock -n "__fish_nxlock_needs_command" -f -a "check" -d 'Check whether the server is fit to keep locks'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l key -d 'Use KEY, without prefix, in place of NAME: for old scripts that use a fixed key' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s t -l ttl -d 'Lease, renewed while the command runs' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s w -l wait -d 'Wait at most D, instead of for ever' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l supersede -d 'The newest wins: others who wait so give up' -r -f -a "waiting\t'Those who wait with --supersede'
running\t'Those, and a holder that runs with --supersede=running: it is asked to give up'"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with N instead of 75 if the lock is held' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l reason -d 'Show TEXT in `status` and to those who wait' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l as -d 'Show TEXT as the holder, before user, host and process' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l min-replicas -d 'Accept the lock only once N replicas of the server have it' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s j -l slots -d 'Let at most N hold the lock at a time, each in its own slot' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l also -d 'Hold the lock NAME2 too: all or none' -r -f -a '(__fish_nxlock_finds_names; and string join \n $__fish_nxlock_names)'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l also-shared -d 'The same, together with all who ask for it with --also-shared or --shared' -r -f -a '(__fish_nxlock_finds_names; and string join \n $__fish_nxlock_names)'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l setnx-margin -d 'With --setnx-compat, how far past such a time must be by the server\'s clock' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l events -d 'Write events to FD, or append them to FILE, one JSON object per line' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l record -d 'Record how this run ends, for `status --history`' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l unless-done -d 'Run nothing, exit 75, if it was done less than D ago' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s c -l shell -d 'Run TEXT with `sh -c`; no further arguments are allowed' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l at-least -d 'Keep the name locked until D after the grant' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l time-limit -d 'Stop the command after D and exit with 124' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l kill-after -d 'When stopping the command, send KILL D after TERM' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l on-lost -d 'What to do if the lock is lost while the command runs' -r -f -a "stop\t'Stop the command and everything it started'
continue\t'Report the loss, and let the command run on without the lock'"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l descendants -d 'What to do with processes that outlive a command that ended by itself' -r -f -a "leave\t'Release the lock at once, and let them run on without it'
wait\t'Hold the lock until they are gone'
stop\t'Stop them, then release the lock'"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s s -l server -d 'Server that keeps the locks' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l prefix -d 'Prefix of the locks\' keys' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l config -d 'Read the configuration only from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l password-file -d 'Read the server\'s password from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l password-command -d 'Run CMD for the server\'s password' -r -f -a "(__fish_complete_command)"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l tls-ca -d 'Trust only the certificate authorities in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l tls-cert -d 'Present the client certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l tls-key -d 'Read the client certificate\'s key from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l server-timeout -d 'Limit of each connect and each reply' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l color -d 'Use colours: auto, always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s n -l no-wait -d 'Fail instead of waiting'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l no-queue -d 'Do not queue: poll like a plain `SET NX` client, on an equal footing with such clients'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l first -d 'Wait ahead of all who wait without --first'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l durable -d 'Accept the lock only once the server has it on disk'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l shared -d 'Hold the lock together with all who ask with --shared too'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l setnx-compat -d 'Share the key with clients that store in it the time at which their lock ends (`SETNX`, `GETSET`)'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l no-ask -d 'Do not let others ask this holder to give up: neither by `release --ask` nor by --supersede=running'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -l json -d 'Print the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s q -l quiet -d 'Report only errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s v -l verbose -d 'Report each step, with the time elapsed'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand run" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l key -d 'Use KEY, without prefix, in place of NAME: for old scripts that use a fixed key' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l while-pid -d 'Hold the lock until process PID ends' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l lost-signal -d 'Send SIG to PID if the lock is lost' -r -f -a '(__fish_nxlock_finds_names; and string join \n $__fish_nxlock_names)'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s t -l ttl -d 'How long you need the lock; it expires after D' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l until -d 'Hold the lock until TIME, in place of --ttl' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s w -l wait -d 'Wait at most D, instead of for ever' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l supersede -d 'The newest wins: others who wait so give up' -r -f -a "waiting\t'Those who wait with --supersede'
running\t'Those, and a holder that runs with --supersede=running: it is asked to give up'"
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s E -l conflict-exit-code -d 'Exit with N instead of 75 if the lock is held' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l reason -d 'Show TEXT in `status` and to those who wait' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l as -d 'Show TEXT as the holder, before user, host and process' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l min-replicas -d 'Accept the lock only once N replicas of the server have it' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s j -l slots -d 'Let at most N hold the lock at a time, each in its own slot' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l also -d 'Hold the lock NAME2 too: all or none' -r -f -a '(__fish_nxlock_finds_names; and string join \n $__fish_nxlock_names)'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l also-shared -d 'The same, together with all who ask for it with --also-shared or --shared' -r -f -a '(__fish_nxlock_finds_names; and string join \n $__fish_nxlock_names)'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l setnx-margin -d 'With --setnx-compat, how far past such a time must be by the server\'s clock' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l events -d 'Write events to FD, or append them to FILE, one JSON object per line' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s s -l server -d 'Server that keeps the locks' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l prefix -d 'Prefix of the locks\' keys' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l config -d 'Read the configuration only from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l password-file -d 'Read the server\'s password from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l password-command -d 'Run CMD for the server\'s password' -r -f -a "(__fish_complete_command)"
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l tls-ca -d 'Trust only the certificate authorities in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l tls-cert -d 'Present the client certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l tls-key -d 'Read the client certificate\'s key from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l server-timeout -d 'Limit of each connect and each reply' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l color -d 'Use colours: auto, always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l export -d 'Print shell variables for `eval` instead of the token'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s n -l no-wait -d 'Fail instead of waiting'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l no-queue -d 'Do not queue: poll like a plain `SET NX` client, on an equal footing with such clients'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l first -d 'Wait ahead of all who wait without --first'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l durable -d 'Accept the lock only once the server has it on disk'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l shared -d 'Hold the lock together with all who ask with --shared too'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l setnx-compat -d 'Share the key with clients that store in it the time at which their lock ends (`SETNX`, `GETSET`)'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -l json -d 'Print the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s q -l quiet -d 'Report only errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s v -l verbose -d 'Report each step, with the time elapsed'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand acquire" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l key -d 'Use KEY, without prefix, in place of NAME: for old scripts that use a fixed key' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s t -l ttl -d 'How long you need the lock from now on, at least 100ms' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s s -l server -d 'Server that keeps the locks' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l prefix -d 'Prefix of the locks\' keys' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l config -d 'Read the configuration only from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l password-file -d 'Read the server\'s password from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l password-command -d 'Run CMD for the server\'s password' -r -f -a "(__fish_complete_command)"
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l tls-ca -d 'Trust only the certificate authorities in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l tls-cert -d 'Present the client certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l tls-key -d 'Read the client certificate\'s key from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l server-timeout -d 'Limit of each connect and each reply' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l color -d 'Use colours: auto, always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -l json -d 'Print the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s q -l quiet -d 'Report only errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s v -l verbose -d 'Report each step, with the time elapsed'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand renew" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l key -d 'Use KEY, without prefix, in place of NAME: for old scripts that use a fixed key' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l ask -d 'Ask the holder that `status` shows as ID to give up' -r -f -a '(__fish_nxlock_finds_names; and string join \n $__fish_nxlock_names)'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l reason -d 'Tell the holder TEXT' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l as -d 'With --ask and --break, tell the holder that it was TEXT, before user, host and process' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s w -l wait -d 'Wait until the holder has given up, at most D' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l break -d 'Take the lock from the holder that `status` shows as ID' -r -f -a '(__fish_nxlock_finds_names; and string join \n $__fish_nxlock_names)'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s s -l server -d 'Server that keeps the locks' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l prefix -d 'Prefix of the locks\' keys' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l config -d 'Read the configuration only from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l password-file -d 'Read the server\'s password from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l password-command -d 'Run CMD for the server\'s password' -r -f -a "(__fish_complete_command)"
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l tls-ca -d 'Trust only the certificate authorities in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l tls-cert -d 'Present the client certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l tls-key -d 'Read the client certificate\'s key from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l server-timeout -d 'Limit of each connect and each reply' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l color -d 'Use colours: auto, always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -l json -d 'Print the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s q -l quiet -d 'Report only errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s v -l verbose -d 'Report each step, with the time elapsed'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand release" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l watch -d 'Keep the view live: refresh it every D' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l limit -d 'Show at most N runs of each lock' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l key -d 'Use KEY, without prefix, in place of NAME' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l max-age -d 'Alarm if the last success is older than D' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l max-held -d 'Alarm if a lock is held for more than D' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l max-waiting -d 'Alarm if more than N wait for a lock' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s s -l server -d 'Server that keeps the locks' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l prefix -d 'Prefix of the locks\' keys' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l config -d 'Read the configuration only from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l password-file -d 'Read the server\'s password from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l password-command -d 'Run CMD for the server\'s password' -r -f -a "(__fish_complete_command)"
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l tls-ca -d 'Trust only the certificate authorities in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l tls-cert -d 'Present the client certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l tls-key -d 'Read the client certificate\'s key from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l server-timeout -d 'Limit of each connect and each reply' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l color -d 'Use colours: auto, always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l history -d 'Show recorded runs: who, when, how long, how they ended'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l metrics -d 'Print OpenMetrics text, for Prometheus'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -l json -d 'Print the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s q -l quiet -d 'Report only errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s v -l verbose -d 'Report each step, with the time elapsed'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c nxlock -n "__fish_nxlock_using_subcommand status" -s V -l version -d 'Print version'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s s -l server -d 'Server that keeps the locks' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l prefix -d 'Prefix of the locks\' keys' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l config -d 'Read the configuration only from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l password-file -d 'Read the server\'s password from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l password-command -d 'Run CMD for the server\'s password' -r -f -a "(__fish_complete_command)"
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l tls-ca -d 'Trust only the certificate authorities in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l tls-cert -d 'Present the client certificate in FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l tls-key -d 'Read the client certificate\'s key from FILE' -r -F
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l server-timeout -d 'Limit of each connect and each reply' -r -f
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l color -d 'Use colours: auto, always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -l json -d 'Print the answer as one JSON document'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s q -l quiet -d 'Report only errors'
complete -c nxlock -n "__fish_nxlock_using_subcommand check" -s v -l verbose -d 'Report each step, with the time elapsed'
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

function __fish_nxlock_finds_command
    set -l words (commandline -opc)
    command -q $words[1]
    or return
    set -l word (commandline -ct | string unescape)
    set -l count (command $words[1] complete-names --command $words "$word" 2>/dev/null </dev/null)
    test -n "$count"
    or return
    set -l before
    test $count -gt 1
    and set before (string escape -- $words[(math 1 - $count)..-1])
    set -g __fish_nxlock_command (string join ' ' -- $before (commandline -ct))
end

complete -c nxlock -n "__fish_nxlock_using_subcommand run; and __fish_nxlock_finds_command" -f -a '(complete -C "$__fish_nxlock_command")'
