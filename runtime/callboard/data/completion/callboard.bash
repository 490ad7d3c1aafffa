# Completion of callboard for bash. For this shell alone:
#   eval "$(callboard completion bash)"
# To keep it (with the package bash-completion installed):
#   mkdir -p ~/.local/share/bash-completion/completions
#   callboard completion bash > ~/.local/share/bash-completion/completions/callboard
# Without that package put the eval line into ~/.bashrc.
_callboard() {
    local kind="" word about
    COMPREPLY=()
    {
        IFS= read -r kind
        while IFS=$'\t' read -r word about; do
            [[ -n $word ]] && COMPREPLY+=("$word")
        done
    } < <("${1/#\~/$HOME}" _complete "$COMP_CWORD" -- "${COMP_WORDS[@]}" 2>/dev/null)
    case $kind in
        file) compopt -o default -o filenames 2>/dev/null ;;
        dir) compopt -o dirnames -o filenames 2>/dev/null ;;
    esac
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[:=] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}
complete -F _callboard callboard
