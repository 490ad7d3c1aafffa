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
    switch "$told[1]"
        case file
            __fish_complete_path (string replace -r '^--[^=]*=' '' -- "$current")
        case dir
            __fish_complete_directories (string replace -r '^--[^=]*=' '' -- "$current")
        case '*'
            for line in $told[2..-1]
                echo "$start$line"
            end
    end
end
complete --command callboard --no-files --arguments '(__callboard_complete)'
