//! Folding the log into files that a new root names: tombstones of every part, and a log that begins behind them.
//!
//! The order is what matters. New files and their names are on the device before a root names them; the root takes the old
//! one's place by one rename; the old files go only once that rename is on the device. Where the rename, or the sync behind
//! it, fails, nobody knows which root the device has: the writer is poisoned.
const std = @import("std");
const adopting = @import("adopt.zig");
const dead_file = @import("dead.zig");
const Delta = @import("delta.zig").Delta;
const diagnostics = @import("diagnostic.zig");
const log_file = @import("log.zig");
const root_file = @import("root.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const file_error = diagnostics.file_error;

const least_bytes = 4 << 20;
const temporary = root_file.file_name ++ ".tmp";

/// With the lock held.
pub fn make(live: anytype, diagnostic: *Diagnostic) Error!void {
    while (live.syncing) live.changed.wait(&live.mutex);
    if (live.poisoned) return live.check_writable(diagnostic);
    if (live.is_live and live.log != null and live.position.offset == live.log_begin) return; // nothing to fold
    try make_anew(live, live.parts.items, live.delta, diagnostic);
    live.seen.lock();
    defer live.seen.unlock();
    live.show_all();
}

/// Also where the log holds nothing new; no sync is under way. `given` and `delta` are what the root is to hold. They may be
/// others than views see: once this has returned, whoever called it shows them, and with them all that was written.
pub fn make_anew(live: anytype, given: anytype, delta: *const Delta, diagnostic: *Diagnostic) Error!void {
    const store = live.store;
    var arena = std.heap.ArenaAllocator.init(live.allocator);
    defer arena.deinit();
    const scratch = arena.allocator();

    const parts = try scratch.alloc(root_file.Part, given.len);
    const counts = try scratch.alloc(u64, parts.len);
    var made: std.ArrayList([]const u8) = .empty;
    var old: std.ArrayList([]const u8) = .empty;
    errdefer if (!live.poisoned) {
        for (made.items) |name| diagnostics.discard(store, name);
    };
    var next_file = live.next_file;
    for (given, parts, counts) |*part, *named, *count| {
        count.* = part.gone.count();
        named.* = .{ .path = part.path, .uuid = part.uuid, .n = part.n, .dead = part.file };
        if (count.* == part.file_count) continue;
        const name = try numbered(scratch, &next_file, "dead", "bin");
        try made.append(scratch, name);
        const bytes = try dead_file.encode(scratch, part.uuid, &part.gone);
        try diagnostics.write_file(store, name, bytes, diagnostic);
        if (part.file) |before| try old.append(scratch, try scratch.dupe(u8, before));
        named.dead = name;
    }
    const log_name = try numbered(live.allocator, &next_file, "log", "velolog");
    errdefer live.allocator.free(log_name);
    try made.append(scratch, try scratch.dupe(u8, log_name));
    var header: log_file.Header = .{ .uuid = undefined, .salt = live.prng.next(), .first_sequence = live.sequence + 1 };
    _ = std.fmt.hexToBytes(&header.uuid, &live.uuid) catch return diagnostics.damaged(diagnostic, root_file.file_name, "has a damaged uuid", .{});
    const log = store.create(log_name) catch |err| return file_error(diagnostic, log_name, "create", err);
    errdefer store.close(log);
    const position = try begin_log(live.store, delta, scratch, log, log_name, &header, diagnostic);
    try diagnostics.sync_folder(store, ".", diagnostic);

    const requests = try scratch.alloc(root_file.Request, live.requests.items.items.len);
    for (requests, live.requests.items.items) |*named, one| named.* = .{ .request = one.name, .sequence = one.sequence, .rows = one.rows, .row = one.row };
    const root: root_file.Root = .{
        .uuid = &live.uuid,
        .generation = live.generation + 1,
        .dim = live.dim,
        .metric = live.metric,
        .dtype = @tagName(live.dtype),
        .ids = if (live.kind) |kind| @tagName(kind) else null,
        .schema = live.schema,
        .built = live.built,
        .readers_understand = root_file.understood(live.has_rows or parts.len != 1, live.has_columns),
        .writers_understand = root_file.understood(live.has_rows or parts.len != 1, live.has_columns),
        .sequence = live.sequence,
        .next_row = live.next_row,
        .next_file = next_file,
        .parts = parts,
        .first_log = log_name,
        .requests = requests,
    };
    // What is to be kept is copied before the rename: from there on nothing may fail for want of memory.
    const kept = try scratch.alloc(?[]const u8, parts.len);
    @memset(kept, null);
    errdefer for (kept) |name| if (name) |one| live.allocator.free(one);
    for (parts, kept) |part, *name| name.* = if (part.dead) |file| try live.allocator.dupe(u8, file) else null;
    try made.append(scratch, temporary);
    try diagnostics.write_file(store, temporary, try root_file.write(scratch, &root), diagnostic);
    store.rename(temporary, root_file.file_name) catch |err| {
        live.poisoned = true;
        return file_error(diagnostic, root_file.file_name, "replace", err);
    };
    diagnostics.sync_folder(store, ".", diagnostic) catch |err| {
        live.poisoned = true;
        return err;
    };

    if (live.log) |file| store.close(file);
    if (live.log_name) |name| {
        try_append(scratch, &old, name);
        live.allocator.free(name);
    }
    for (given, kept, counts) |*part, name, count| {
        if (part.file) |before| live.allocator.free(before);
        part.file = name;
        part.file_count = count;
    }
    live.log_name = log_name;
    live.log = log;
    live.log_header = header;
    live.position = position;
    live.log_begin = position.offset;
    live.last_is_promise = position.offset > log_file.header_bytes;
    live.generation = root.generation;
    live.next_file = next_file;
    live.root_sequence = live.sequence;
    live.synced_sequence = live.sequence;
    live.synced_offset = position.offset;
    live.checkpoint_at = checkpoint_bytes(live, given);
    live.changed.broadcast();
    for (old.items) |name| diagnostics.discard(store, name);
}

fn try_append(scratch: std.mem.Allocator, names: *std.ArrayList([]const u8), name: []const u8) void {
    const copy = scratch.dupe(u8, name) catch return; // then it is litter
    names.append(scratch, copy) catch {};
}

/// How long the log may grow: as long again as what it carries over, so that this is not written over and over.
fn checkpoint_bytes(live: anytype, parts: anytype) u64 {
    var rows: u64 = 0;
    for (parts) |part| rows += part.n;
    const most = if (live.options.checkpoint_bytes > 0) live.options.checkpoint_bytes else @max(least_bytes, rows / 16);
    return if (live.log_begin == log_file.header_bytes) most else live.log_begin + @max(most, live.log_begin);
}

/// The new log's header, and behind it the rows that no part holds. A promise ends them: all of it is on the device before a
/// root names it, so damage there is never taken for a torn end.
fn begin_log(store: anytype, delta: *const Delta, scratch: std.mem.Allocator, log: anytype, name: []const u8, header: *const log_file.Header, diagnostic: *Diagnostic) Error!log_file.Position {
    var position: log_file.Position = .begin(header);
    store.write(log, &header.encode(), 0) catch |err| return file_error(diagnostic, name, "write", err);
    for (delta.records.items) |record| {
        const offset = position.offset;
        log_file.seal(record.bytes, .carried, record.rows.count, 0, &position);
        store.write(log, record.bytes, offset) catch |err| return file_error(diagnostic, name, "write", err);
    }
    if (delta.gone.count > 0) {
        const size = std.mem.alignForward(usize, 4 * @as(usize, delta.gone.count), 8);
        const bytes = try scratch.alloc(u8, log_file.record_bytes(size));
        @memset(bytes, 0);
        var at: usize = log_file.record_header_bytes;
        for (0..delta.rows) |row| {
            if (!delta.gone.bits.isSet(row)) continue;
            std.mem.writeInt(u32, bytes[at..][0..4], @intCast(row), .little);
            at += 4;
        }
        const offset = position.offset;
        log_file.seal(bytes, .buried, delta.gone.count, 0, &position);
        store.write(log, bytes, offset) catch |err| return file_error(diagnostic, name, "write", err);
    }
    if (position.offset > log_file.header_bytes) {
        var promise: [log_file.record_header_bytes]u8 align(8) = @splat(0);
        const offset = position.offset;
        log_file.seal(&promise, .promise, 0, offset, &position);
        store.write(log, &promise, offset) catch |err| return file_error(diagnostic, name, "write", err);
    }
    store.sync(log) catch |err| return file_error(diagnostic, name, "sync", err);
    return position;
}

fn numbered(allocator: std.mem.Allocator, next_file: *u64, comptime stem: []const u8, comptime suffix: []const u8) error{OutOfMemory}![]u8 {
    const name = try std.fmt.allocPrint(allocator, stem ++ "-{x:0>16}." ++ suffix, .{next_file.*});
    next_file.* += 1;
    return name;
}

/// What a writer finds becomes its own: a torn end is put aside, what the log holds is written anew, since a device may
/// have lost what its cache still shows, and litter goes.
pub fn take_over(live: anytype, end: log_file.End, diagnostic: *Diagnostic) Error!void {
    if (end == .torn) try put_aside(live, diagnostic);
    live.log_begin = 0;
    if (live.position.offset > log_file.header_bytes or end == .torn) {
        try make(live, diagnostic);
    } else {
        // The root may stand there by a rename that no sync has seen, and what it no longer names goes below: not before
        // the root is there for good.
        try diagnostics.sync_folder(live.store, ".", diagnostic);
        live.log = live.store.open_file(live.log_name.?, .read_write) catch |err| return file_error(diagnostic, live.log_name.?, "open", err);
        live.synced_offset = live.position.offset;
        live.synced_sequence = live.sequence;
        live.log_begin = live.position.offset;
        live.checkpoint_at = checkpoint_bytes(live, live.parts.items);
    }
    try adopting.remove_old_names(live, diagnostic);
    try remove_litter(live, diagnostic);
}

fn put_aside(live: anytype, diagnostic: *Diagnostic) Error!void {
    const store = live.store;
    const bytes = try diagnostics.read_file(live.allocator, store, live.log_name.?, std.math.maxInt(u63), diagnostic) orelse
        return diagnostics.damaged(diagnostic, live.log_name.?, "is missing", .{});
    defer live.allocator.free(bytes);
    var buffer: [80]u8 = undefined;
    const name = std.fmt.bufPrint(&buffer, "{s}.torn", .{live.log_name.?}) catch unreachable; // root.zig limits it
    try diagnostics.write_file(store, name, bytes[@intCast(live.position.offset)..], diagnostic);
    try diagnostics.sync_folder(store, ".", diagnostic);
}

/// Whether this is a name as velo numbers them. All others are somebody else's.
fn is_ours(name: []const u8, comptime stem: []const u8, comptime suffix: []const u8) bool {
    if (name.len != stem.len + 16 + suffix.len) return false;
    if (!std.mem.startsWith(u8, name, stem) or !std.mem.endsWith(u8, name, suffix)) return false;
    return std.mem.indexOfNone(u8, name[stem.len..][0..16], "0123456789abcdef") == null;
}

/// Files of ours that no root names: a checkpoint or an adoption was killed. Of torn ends the newest is kept.
pub fn remove_litter(live: anytype, diagnostic: *Diagnostic) Error!void {
    const store = live.store;
    var arena = std.heap.ArenaAllocator.init(live.allocator);
    defer arena.deinit();
    const names = store.list(arena.allocator()) catch |err| return file_error(diagnostic, ".", "list", err);
    var newest: []const u8 = "";
    for (names) |name| {
        if (is_ours(name, "log-", ".velolog.torn") and std.mem.order(u8, name, newest) == .gt) newest = name;
    }
    for (names) |name| {
        if (is_named(live, name) or std.mem.eql(u8, name, newest)) continue;
        if (is_ours(name, "part-", "")) {
            store.remove_unheld(name) catch {};
        } else if (std.mem.eql(u8, name, temporary) or is_ours(name, "dead-", ".bin") or is_ours(name, "log-", ".velolog") or is_ours(name, "log-", ".velolog.torn"))
            diagnostics.discard(store, name);
    }
}

fn is_named(live: anytype, name: []const u8) bool {
    if (std.mem.eql(u8, name, live.log_name.?)) return true;
    for (live.parts.items) |part| {
        if (std.mem.eql(u8, name, part.path)) return true;
        if (part.file) |file| if (std.mem.eql(u8, name, file)) return true;
    }
    return false;
}
