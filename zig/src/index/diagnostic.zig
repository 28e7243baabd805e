//! The description of an error, beside its name. The capi room copies it into velo_error.
const std = @import("std");

pub const Diagnostic = struct {
    message_buffer: [512]u8 = undefined,
    message_len: usize = 0,
    argument: []const u8 = "", // a literal
    file_buffer: [256]u8 = undefined,
    file_len: usize = 0,
    page: i64 = -1,
    row: i64 = -1,
    needed_bytes: u64 = 0,

    pub fn message(self: *const Diagnostic) []const u8 {
        return self.message_buffer[0..self.message_len];
    }

    pub fn file(self: *const Diagnostic) []const u8 {
        return self.file_buffer[0..self.file_len];
    }

    pub fn say(self: *Diagnostic, comptime format: []const u8, args: anytype) void {
        var writer: std.Io.Writer = .fixed(&self.message_buffer);
        writer.print(format, args) catch {}; // a message cut short still says most of it
        self.message_len = writer.end;
    }

    pub fn in_file(self: *Diagnostic, name: []const u8, comptime format: []const u8, args: anytype) void {
        const len = @min(name.len, self.file_buffer.len);
        @memcpy(self.file_buffer[0..len], name[0..len]);
        self.file_len = len;
        self.say(format, args);
    }
};

/// Every way an index room call can fail; capi maps each to one status.
pub const Error = error{
    InvalidArgument,
    NotFinite,
    Empty,
    NotAnIndex,
    Corrupt,
    UnsupportedVersion,
    Io,
    NoSpace,
    Permission,
    OutOfMemory,
    BudgetTooSmall,
    Canceled,
    Exists,
    Unsupported,
    Internal,
};

/// Errors that people know under another name than Zig's.
pub fn reason(err: anyerror) []const u8 {
    return switch (err) {
        error.ProcessFdQuotaExceeded => "this process is out of file descriptors (ulimit -n)",
        error.SystemFdQuotaExceeded => "the system is out of file descriptors (fs.file-max)",
        else => @errorName(err),
    };
}

/// Translates an errno-like Zig error of a file call.
pub fn file_error(diagnostic: *Diagnostic, name: []const u8, doing: []const u8, err: anyerror) Error {
    diagnostic.in_file(name, "cannot {s} {s}: {s}", .{ doing, name, reason(err) });
    return switch (err) {
        error.NoSpaceLeft, error.DiskQuota, error.FileTooBig => error.NoSpace,
        error.AccessDenied, error.PermissionDenied, error.ReadOnlyFileSystem => error.Permission,
        error.OutOfMemory, error.SystemResources => error.OutOfMemory,
        error.PathAlreadyExists => error.Exists,
        else => error.Io,
    };
}
