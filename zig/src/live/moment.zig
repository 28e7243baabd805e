//! One consistent state of a folder beside a writer: a root, and everything that it names.
//!
//! The files of a part never change, and a writer leaves a part in place while a reader holds its lock. Tombstones and log
//! are read at once. So a root whose parts are locked and whose other files are in memory stays whole, whatever the writer
//! does next. Where something is missing the root is read again: another root by then means that the writer took the file
//! away, the same root means damage.
const std = @import("std");
const index = @import("index");
const base = @import("base");
const dead_file = @import("dead.zig");
const diagnostics = @import("diagnostic.zig");
const root_file = @import("root.zig");
const find = @import("find.zig");
const log_file = @import("log.zig");
const FolderStore = @import("store.zig").FolderStore;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// Roots that may follow each other before the search for a consistent one ends.
pub const attempts_max = 1000;

pub fn Moment(comptime Store: type) type {
    return struct {
        const Self = @This();

        store: *Store,
        /// All memory of it.
        arena: std.heap.ArenaAllocator,
        root: root_file.Root,
        holds: std.ArrayList(Store.Hold) = .empty,
        /// The tombstones of each part; null: none of its rows is dead.
        dead: [](?[]const u8),
        log: []const u8,

        /// Null: the folder has no root.
        pub fn take(allocator: std.mem.Allocator, store: *Store, diagnostic: *Diagnostic) Error!?Self {
            var text = try read_root(allocator, store, diagnostic) orelse return null;
            defer allocator.free(text);
            var attempt: u32 = 1;
            while (true) : (attempt += 1) {
                return take_once(allocator, store, text, diagnostic) catch |err| {
                    const now = try read_root(allocator, store, diagnostic) orelse return err;
                    const is_same = std.mem.eql(u8, now, text);
                    allocator.free(text);
                    text = now;
                    if (is_same or attempt == attempts_max) return err;
                    continue;
                };
            }
        }

        pub fn release(self: *Self) void {
            for (self.holds.items) |hold| self.store.release(hold);
            self.arena.deinit();
        }

        fn read_root(allocator: std.mem.Allocator, store: *Store, diagnostic: *Diagnostic) Error!?[]u8 {
            return diagnostics.read_file(allocator, store, root_file.file_name, root_file.bytes_max, diagnostic);
        }

        fn take_once(allocator: std.mem.Allocator, store: *Store, text: []const u8, diagnostic: *Diagnostic) Error!Self {
            var self: Self = .{ .store = store, .arena = .init(allocator), .root = undefined, .dead = undefined, .log = undefined };
            errdefer self.release();
            const scratch = self.arena.allocator();
            self.root = root_file.parse(scratch, try scratch.dupe(u8, text)) catch |err| return switch (err) {
                error.BadRoot => diagnostics.damaged(diagnostic, root_file.file_name, "is damaged", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, root_file.file_name),
                error.OutOfMemory => error.OutOfMemory,
            };
            for (self.root.parts) |part| {
                try self.holds.ensureUnusedCapacity(scratch, 1);
                const hold = store.hold(part.path) catch |err| switch (@as(anyerror, err)) {
                    error.FileNotFound, error.NotDir, error.WouldBlock => return diagnostics.damaged(diagnostic, part.path, "is missing", .{}),
                    else => return diagnostics.file_error(diagnostic, part.path, "open", err),
                };
                self.holds.appendAssumeCapacity(hold);
            }
            self.dead = try scratch.alloc(?[]const u8, self.root.parts.len);
            for (self.root.parts, self.dead) |part, *bytes| {
                const name = part.dead orelse {
                    bytes.* = null;
                    continue;
                };
                bytes.* = try diagnostics.read_file(scratch, store, name, dead_file.file_bytes(part.n), diagnostic) orelse
                    return diagnostics.damaged(diagnostic, name, "is missing", .{});
            }
            self.log = try diagnostics.read_file(scratch, store, self.root.first_log, std.math.maxInt(u63), diagnostic) orelse
                return diagnostics.damaged(diagnostic, self.root.first_log, "is missing", .{});
            return self;
        }
    };
}

// ---- verification ----
//
// Reads every file of an index whole, live or as it was built.

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
