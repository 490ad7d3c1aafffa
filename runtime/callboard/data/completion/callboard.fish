# Completion of callboard for fish. For this shell alone:
#   callboard completion fish | source
# To keep it:
#   callboard completion fish > ~/.config/fish/completions/callboard.fish
function __callboard_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l told (command $before[1] _complete (count $before) -- $before "$current" 2>/dev/null)
    set -l start ''
    if string match -q -- '--*=*' $current
        set start (string replace -r '=.*' '=' -- $current)
    end
    set -l path (string replace -r '^(--[^=]*=)?((rehearsal|cassette):)?' '' -- "$current")
    set -l before_path (string replace -r -- (string escape --style=regex -- "$path")'$' '' "$current")
    switch "$told[1]"
        case file
            for name in (__fish_complete_path "$path")
                echo "$before_path$name"
            end
        case dir
            for name in (__fish_complete_directories "$path")
                echo "$before_path$name"
            end
        case '*'
            for line in $told[2..-1]
                echo "$start$line"
            end
    end
end
complete --command callboard --no-files --arguments '(__callboard_complete)'
