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
const Moment = @import("moment.zig").Moment;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub fn verify(allocator: std.mem.Allocator, path: []const u8, pages_checked: *u64, diagnostic: *Diagnostic) Error!void {
    pages_checked.* = 0;
    var store = FolderStore.open(path) catch return index.verify(allocator, path, pages_checked, diagnostic); // which says why
    defer store.deinit();
    var moment = try Moment(FolderStore).take(allocator, &store, diagnostic) orelse
        return index.verify(allocator, path, pages_checked, diagnostic);
    defer moment.release();
    var arena = std.heap.ArenaAllocator.init(allocator);
    defer arena.deinit();
    const scratch = arena.allocator();
    for (moment.root.parts, moment.dead) |part, dead| {
        if (dead) |bytes| try check_dead(allocator, bytes, &part, diagnostic);
        const finder = try std.fmt.allocPrint(scratch, "{s}/{s}", .{ part.path, find.file_name });
        try check_finder(&store, finder, part.n, diagnostic);
        var pages: u64 = 0;
        try index.verify(allocator, try std.fs.path.join(scratch, &.{ path, part.path }), &pages, diagnostic);
        pages_checked.* += pages;
    }
    try check_log(moment.log, &moment.root, diagnostic);
}

fn check_dead(allocator: std.mem.Allocator, bytes: []const u8, part: *const root_file.Part, diagnostic: *Diagnostic) Error!void {
    const name = part.dead.?;
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
fn check_log(bytes: []const u8, root: *const root_file.Root, diagnostic: *Diagnostic) Error!void {
    const name = root.first_log;
    const header = log_file.Header.parse(bytes) catch |err| return switch (err) {
        error.BadHeader => diagnostics.damaged(diagnostic, name, "has a damaged header", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, name),
    };
    if (header.first_sequence != root.sequence + 1) return diagnostics.damaged(diagnostic, name, "begins elsewhere than {s} says", .{root_file.file_name});
    var scanner: log_file.Scanner = .{ .bytes = bytes, .first = 0, .position = .begin(&header) };
    while (scanner.next()) |_| {}
    _ = scanner.end() catch return diagnostics.damaged(diagnostic, name, "is damaged at byte {d}", .{scanner.position.offset});
}
