//! Failures of this room, and small file jobs that every part of it does the same way.
const std = @import("std");
const index = @import("index");

pub const Diagnostic = index.Diagnostic;
/// Busy: another writer is at work.
pub const Error = index.Error || error{Busy};

pub const file_error = index.diagnostic.file_error;

pub fn damaged(diagnostic: *Diagnostic, name: []const u8, comptime why: []const u8, args: anytype) Error {
    diagnostic.in_file(name, "{s} " ++ why, .{name} ++ args);
    return error.Corrupt;
}

pub fn newer(diagnostic: *Diagnostic, name: []const u8) Error {
    diagnostic.in_file(name, "{s} was written by a newer velo", .{name});
    return error.UnsupportedVersion;
}

/// A whole file in memory that is the caller's; null where there is none.
pub fn read_file(allocator: std.mem.Allocator, store: anytype, name: []const u8, bytes_max: u64, diagnostic: *Diagnostic) Error!?[]u8 {
    const file = store.open_file(name, .read_only) catch |err| switch (@as(anyerror, err)) {
        error.FileNotFound => return null,
        else => return file_error(diagnostic, name, "open", err),
    };
    defer store.close(file);
    return try read_opened(allocator, store, file, name, 0, bytes_max, diagnostic);
}

/// A file from a byte on.
pub fn read_opened(allocator: std.mem.Allocator, store: anytype, file: anytype, name: []const u8, first: u64, bytes_max: u64, diagnostic: *Diagnostic) Error![]u8 {
    // Records appended meanwhile are left for the next look, so that only the last record may be half there.
    const length = store.size(file) catch |err| return file_error(diagnostic, name, "stat", err);
    if (length > bytes_max) return damaged(diagnostic, name, "has {d} bytes", .{length});
    if (length < first) return damaged(diagnostic, name, "is shorter than it was", .{});
    const bytes = try allocator.alloc(u8, @intCast(length - first));
    errdefer allocator.free(bytes);
    const read = store.read(file, bytes, first) catch |err| return file_error(diagnostic, name, "read", err);
    // A writer may cut the torn end of a log meanwhile. Other files are replaced, never cut, and have sums.
    return if (read < bytes.len) allocator.realloc(bytes, read) else bytes;
}

/// A new file with these bytes, synced; its name is not, before the folder is.
pub fn write_file(store: anytype, name: []const u8, bytes: []const u8, diagnostic: *Diagnostic) Error!void {
    const file = store.create(name) catch |err| return file_error(diagnostic, name, "create", err);
    defer store.close(file);
    store.write(file, bytes, 0) catch |err| return file_error(diagnostic, name, "write", err);
    store.sync(file) catch |err| return file_error(diagnostic, name, "sync", err);
}

pub fn sync_folder(store: anytype, name: []const u8, diagnostic: *Diagnostic) Error!void {
    store.sync_folder(name) catch |err| return file_error(diagnostic, name, "sync", err);
}

/// Takes away what nothing refers to any more. If that fails it is litter, which the next writer takes away.
pub fn discard(store: anytype, name: []const u8) void {
    store.remove(name) catch {};
}

/// Other segments took the place of those that are open.
pub fn moved(diagnostic: *Diagnostic) Error {
    diagnostic.argument = "moved";
    diagnostic.say("another process changed the parts of the index meanwhile: open it again", .{});
    return error.Unsupported;
}

/// A file system that cannot do what several processes need.
pub fn refused(diagnostic: *Diagnostic, name: []const u8, doing: []const u8, err: anyerror) Error {
    switch (err) {
        error.FileLocksNotSupported, error.MemoryMappingNotSupported => {},
        else => return file_error(diagnostic, name, doing, err),
    }
    diagnostic.in_file(name, "the file system of the index does not let velo {s} {s}, which writing needs ({s}): it can be opened to read", .{ doing, name, @errorName(err) });
    return error.Unsupported;
}

/// Another index took the folder's place.
pub fn replaced(diagnostic: *Diagnostic) Error {
    diagnostic.say("the folder holds another index by now: open it again", .{});
    return error.Unsupported;
}
