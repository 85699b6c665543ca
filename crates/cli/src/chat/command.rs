//! Commands among the lines of a chat: those that start with a slash.

use std::path::PathBuf;

/// What a line asks of the program instead of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatCommand {
    /// List the commands.
    Help,
    /// Forget the conversation.
    Reset,
    /// Print the system prompt.
    ShowSystem,
    /// Replace the system prompt.
    System(String),
    /// Write the conversation to a file.
    Save(PathBuf),
    /// Read a conversation from a file.
    Load(PathBuf),
    /// Print figures.
    Stats,
    /// Leave.
    Quit,
}

impl ChatCommand {
    /// The command that a line is; `None` for a line to say to the model, an explanation for a command that is none.
    pub fn parse(line: &str) -> Option<Result<ChatCommand, String>> {
        let rest = line.trim().strip_prefix('/')?;
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = argument.trim();
        let file = |make: fn(PathBuf) -> ChatCommand| match argument {
            "" => Err(format!("/{name} takes a file")),
            path => Ok(make(path.into())),
        };
        let alone = |command| match argument {
            "" => Ok(command),
            _ => Err(format!("/{name} takes no argument")),
        };
        Some(match name {
            "help" | "?" => alone(ChatCommand::Help),
            "reset" => alone(ChatCommand::Reset),
            "system" if argument.is_empty() => Ok(ChatCommand::ShowSystem),
            "system" => Ok(ChatCommand::System(argument.to_owned())),
            "save" => file(ChatCommand::Save),
            "load" => file(ChatCommand::Load),
            "stats" => alone(ChatCommand::Stats),
            "quit" | "exit" => alone(ChatCommand::Quit),
            // A path or a comment in a question is no command.
            other if !other.chars().all(|c| c.is_ascii_alphabetic()) || other.is_empty() => return None,
            other => Err(format!("there is no command /{other}; /help lists them")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_questions_or_mistakes() {
        let command = |line| ChatCommand::parse(line).expect("a command").expect("a right one");
        assert_eq!(command("/help"), ChatCommand::Help);
        assert_eq!(command("  /system  be brief "), ChatCommand::System("be brief".into()));
        assert_eq!(command("/system"), ChatCommand::ShowSystem);
        assert_eq!(command("/save my chat.json"), ChatCommand::Save("my chat.json".into()));
        assert_eq!(command("/exit"), ChatCommand::Quit);
        for question in ["hello", "what is /help?", "/usr/bin is what?", "// a comment", "/"] {
            assert_eq!(ChatCommand::parse(question), None, "{question}");
        }
        for (line, why) in [("/save", "takes a file"), ("/reset now", "no argument"), ("/hlep", "/help")] {
            let error = ChatCommand::parse(line).expect("a command").expect_err("a wrong one");
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
