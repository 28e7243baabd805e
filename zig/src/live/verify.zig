//! Reads every file of an index whole, live or as it was built.
const std = @import("std");
const index = @import("index");
const base = @import("base");
const dead_file = @import("dead.zig");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const log_file = @import("log.zig");
const root_file = @import("root.zig");
const FolderStore = @import("store.zig").FolderStore;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub fn verify(allocator: std.mem.Allocator, path: []const u8, pages_checked: *u64, diagnostic: *Diagnostic) Error!void {
    pages_checked.* = 0;
    var store = FolderStore.open(path) catch return index.verify(allocator, path, pages_checked, diagnostic); // which says why
    defer store.deinit();
    var arena = std.heap.ArenaAllocator.init(allocator);
    defer arena.deinit();
    const scratch = arena.allocator();
    const text = try diagnostics.read_file(scratch, &store, root_file.file_name, root_file.bytes_max, diagnostic) orelse
        return index.verify(allocator, path, pages_checked, diagnostic);
    const root = root_file.parse(scratch, text) catch |err| return switch (err) {
        error.BadRoot => diagnostics.damaged(diagnostic, root_file.file_name, "is damaged", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, root_file.file_name),
        error.OutOfMemory => error.OutOfMemory,
    };
    for (root.parts) |part| {
        if (part.dead) |name| try check_dead(allocator, &store, name, &part, diagnostic);
        const finder = try std.fmt.allocPrint(scratch, "{s}/{s}", .{ part.path, find.file_name });
        try check_finder(&store, finder, part.n, diagnostic);
        var pages: u64 = 0;
        try index.verify(allocator, try std.fs.path.join(scratch, &.{ path, part.path }), &pages, diagnostic);
        pages_checked.* += pages;
    }
    try check_log(allocator, &store, &root, diagnostic);
}

fn check_dead(allocator: std.mem.Allocator, store: *FolderStore, name: []const u8, part: *const root_file.Part, diagnostic: *Diagnostic) Error!void {
    const bytes = try diagnostics.read_file(allocator, store, name, dead_file.file_bytes(part.n), diagnostic) orelse
        return diagnostics.damaged(diagnostic, name, "is missing", .{});
    defer allocator.free(bytes);
    var set = try base.BitSet.init(allocator, @intCast(part.n));
    defer set.deinit(allocator);
    dead_file.parse(bytes, part.uuid, &set) catch |err| return switch (err) {
        error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, name),
    };
}

fn check_finder(store: *FolderStore, name: []const u8, n: u64, diagnostic: *Diagnostic) Error!void {
    const bytes = store.map(name) catch |err| return switch (@as(anyerror, err)) {
        error.FileNotFound, error.EndOfStream => diagnostics.damaged(diagnostic, name, "is missing or empty", .{}),
        else => diagnostics.file_error(diagnostic, name, "map", err),
    };
    defer store.unmap(bytes);
    _ = find.Finder.parse(bytes, n) catch |err| return switch (err) {
        error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, name),
    };
}

/// A torn end is none of a log's damage: whoever writes next puts it aside.
fn check_log(allocator: std.mem.Allocator, store: *FolderStore, root: *const root_file.Root, diagnostic: *Diagnostic) Error!void {
    const name = root.first_log;
    const bytes = try diagnostics.read_file(allocator, store, name, std.math.maxInt(u63), diagnostic) orelse
        return diagnostics.damaged(diagnostic, name, "is missing", .{});
    defer allocator.free(bytes);
    const header = log_file.Header.parse(bytes) catch |err| return switch (err) {
        error.BadHeader => diagnostics.damaged(diagnostic, name, "has a damaged header", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, name),
    };
    if (header.first_sequence != root.sequence + 1) return diagnostics.damaged(diagnostic, name, "begins elsewhere than {s} says", .{root_file.file_name});
    var scanner: log_file.Scanner = .{ .bytes = bytes, .first = 0, .position = .begin(&header) };
    while (scanner.next()) |_| {}
    _ = scanner.end() catch return diagnostics.damaged(diagnostic, name, "is damaged at byte {d}", .{scanner.position.offset});
}
