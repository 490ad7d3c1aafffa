#compdef callboard
# Completion of callboard for zsh. For this shell alone (after compinit):
#   eval "$(callboard completion zsh)"
# To keep it: into a folder of your fpath, then start a new shell.
#   callboard completion zsh > "${fpath[1]}/_callboard"
_callboard() {
    local kind word about
    local -a told bare
    {
        IFS= read -r kind
        while IFS=$'\t' read -r word about; do
            [[ -z $word ]] && continue
            if [[ $word == *: ]]; then
                bare+=("$word")
            else
                told+=("${word//:/\\:}:$about")
            fi
        done
    } < <("${words[1]/#\~/$HOME}" _complete "$((CURRENT - 1))" -- "${words[@]}" 2>/dev/null)
    [[ ${words[CURRENT]} == --*=* ]] && compset -P '*='
    case $kind in
        file)
            compset -P '(rehearsal|cassette):'
            _files
            ;;
        dir) _files -/ ;;
        *)
            (( ${#told} )) && _describe -V callboard told
            (( ${#bare} )) && compadd -S '' -a bare
            ;;
    esac
}
if [[ ${funcstack[1]} == _callboard ]]; then
    _callboard "$@"
else
    compdef _callboard callboard
fi
