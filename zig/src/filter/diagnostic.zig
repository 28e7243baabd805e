//! The description of an error, beside its name.
const std = @import("std");

pub const Diagnostic = struct {
    message_buffer: [512]u8 = undefined,
    message_len: usize = 0,
    file_buffer: [256]u8 = undefined,
    file_len: usize = 0,

    /// The file that it is about, where there is one.
    pub fn file(self: *const Diagnostic) []const u8 {
        return self.file_buffer[0..self.file_len];
    }

    pub fn in_file(self: *Diagnostic, name: []const u8, comptime format: []const u8, args: anytype) void {
        self.file_len = @min(name.len, self.file_buffer.len);
        @memcpy(self.file_buffer[0..self.file_len], name[0..self.file_len]);
        self.say("{s} " ++ format, .{name} ++ args);
    }

    pub fn message(self: *const Diagnostic) []const u8 {
        return self.message_buffer[0..self.message_len];
    }

    pub fn say(self: *Diagnostic, comptime format: []const u8, args: anytype) void {
        var writer: std.Io.Writer = .fixed(&self.message_buffer);
        writer.print(format, args) catch {}; // a message cut short still says most of it
        self.message_len = writer.end;
    }
};
