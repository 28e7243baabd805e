//! One consistent state of a folder beside a writer: a manifest, and everything that it names.
//!
//! The files of a segment never change, and a writer leaves a segment in place while a reader holds its lock. Tombstones and log
//! are read at once. So a manifest whose segments are locked and whose other files are in memory stays whole, whatever the writer
//! does next. If a file is missing the manifest is read again: another manifest means that the writer removed the file, the same
//! manifest means damage.
const std = @import("std");
const index = @import("index");
const base = @import("base");
const dead_file = @import("deleted.zig");
const diagnostics = @import("diagnostic.zig");
const manifest_file = @import("manifest.zig");
const find = @import("find.zig");
const wal_file = @import("wal.zig");
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
        manifest: manifest_file.FolderManifest,
        holds: std.ArrayList(Store.Hold) = .empty,
        /// The tombstones of each segment; null: none of its rows is dead.
        deleted: [](?[]const u8),
        wal: []const u8,

        /// Null: the folder has no manifest.
        pub fn take(allocator: std.mem.Allocator, store: *Store, diagnostic: *Diagnostic) Error!?Self {
            var text = try read_manifest(allocator, store, diagnostic) orelse return null;
            defer allocator.free(text);
            var attempt: u32 = 1;
            while (true) : (attempt += 1) {
                return take_once(allocator, store, text, diagnostic) catch |err| {
                    const now = try read_manifest(allocator, store, diagnostic) orelse return err;
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

        /// Damage to any file but those of the segments' own indexes.
        pub fn check(self: *const Self, allocator: std.mem.Allocator, diagnostic: *Diagnostic) Error!void {
            for (self.manifest.parts, self.deleted) |segment, deleted| {
                if (deleted) |bytes| try check_deleted(allocator, bytes, &segment, diagnostic);
                var buffer: [128]u8 = undefined;
                const finder = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ segment.path, find.file_name }) catch unreachable; // manifest.zig limits it
                try check_finder(self.store, finder, segment.n, diagnostic);
            }
            try check_wal(self.wal, &self.manifest, diagnostic);
        }

        fn read_manifest(allocator: std.mem.Allocator, store: *Store, diagnostic: *Diagnostic) Error!?[]u8 {
            return diagnostics.read_file(allocator, store, manifest_file.file_name, manifest_file.bytes_max, diagnostic);
        }

        fn take_once(allocator: std.mem.Allocator, store: *Store, text: []const u8, diagnostic: *Diagnostic) Error!Self {
            var self: Self = .{ .store = store, .arena = .init(allocator), .manifest = undefined, .deleted = undefined, .wal = undefined };
            errdefer self.release();
            const scratch = self.arena.allocator();
            self.manifest = manifest_file.parse(scratch, try scratch.dupe(u8, text)) catch |err| return switch (err) {
                error.BadFolderManifest => diagnostics.damaged(diagnostic, manifest_file.file_name, "is damaged", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, manifest_file.file_name),
                error.OutOfMemory => error.OutOfMemory,
            };
            for (self.manifest.parts) |segment| {
                try self.holds.ensureUnusedCapacity(scratch, 1);
                const hold = store.hold(segment.path) catch |err| switch (@as(anyerror, err)) {
                    error.FileNotFound, error.NotDir, error.WouldBlock => return diagnostics.damaged(diagnostic, segment.path, "is missing", .{}),
                    else => return diagnostics.file_error(diagnostic, segment.path, "open", err),
                };
                self.holds.appendAssumeCapacity(hold);
            }
            self.deleted = try scratch.alloc(?[]const u8, self.manifest.parts.len);
            for (self.manifest.parts, self.deleted) |segment, *bytes| {
                const name = segment.dead orelse {
                    bytes.* = null;
                    continue;
                };
                bytes.* = try diagnostics.read_file(scratch, store, name, dead_file.file_bytes(segment.n), diagnostic) orelse
                    return diagnostics.damaged(diagnostic, name, "is missing", .{});
            }
            self.wal = try diagnostics.read_file(scratch, store, self.manifest.first_log, std.math.maxInt(u63), diagnostic) orelse
                return diagnostics.damaged(diagnostic, self.manifest.first_log, "is missing", .{});
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
    try moment.check(allocator, diagnostic);
    for (moment.manifest.parts) |segment| {
        const folder = try std.fs.path.join(allocator, &.{ path, segment.path });
        defer allocator.free(folder);
        var pages: u64 = 0;
        try index.verify(allocator, folder, &pages, diagnostic);
        pages_checked.* += pages;
    }
}

fn check_deleted(allocator: std.mem.Allocator, bytes: []const u8, segment: *const manifest_file.Segment, diagnostic: *Diagnostic) Error!void {
    const name = segment.dead.?;
    var set = try base.BitSet.init(allocator, @intCast(segment.n));
    defer set.deinit(allocator);
    dead_file.parse(bytes, segment.uuid, &set) catch |err| return switch (err) {
        error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, name),
    };
}

fn check_finder(store: anytype, name: []const u8, n: u64, diagnostic: *Diagnostic) Error!void {
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

/// A torn end is no damage of a log: the next writer truncates it.
fn check_wal(bytes: []const u8, manifest: *const manifest_file.FolderManifest, diagnostic: *Diagnostic) Error!void {
    const name = manifest.first_log;
    const header = wal_file.Header.parse(bytes) catch |err| return switch (err) {
        error.BadHeader => diagnostics.damaged(diagnostic, name, "has a damaged header", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, name),
    };
    if (header.first_sequence != manifest.sequence + 1) return diagnostics.damaged(diagnostic, name, "begins elsewhere than {s} says", .{manifest_file.file_name});
    var scanner: wal_file.Scanner = .{ .bytes = bytes, .first = 0, .position = .begin(&header) };
    while (scanner.next()) |_| {}
    _ = scanner.end() catch return diagnostics.damaged(diagnostic, name, "is damaged at byte {d}", .{scanner.position.offset});
}
