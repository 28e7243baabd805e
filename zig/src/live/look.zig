//! A look at the folder: what its root says, and which of the parts that are open it still names. The first look is a
//! writer's or a reader's opening; a reader looks again whenever it asks what others have written since.
const std = @import("std");
const adopting = @import("adopt.zig");
const diagnostics = @import("diagnostic.zig");
const moment = @import("moment.zig");
const replaying = @import("replay.zig");
const root_file = @import("root.zig");
const rows_payload = @import("rows.zig");
const scan = @import("scan.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// The root as it is now, or the index as it was built.
pub fn read_root(live: anytype, diagnostic: *Diagnostic) Error!void {
    const text = try root_text(live, diagnostic) orelse describe: {
        // The first write puts a root there and takes the manifest away: it may do so between the two looks.
        adopting.describe(live, diagnostic) catch |err| {
            if (err != error.NotAnIndex) return err;
            break :describe try root_text(live, diagnostic) orelse return err;
        };
        return;
    };
    defer live.allocator.free(text);
    var arena = std.heap.ArenaAllocator.init(live.allocator);
    defer arena.deinit();
    const root = root_file.parse(arena.allocator(), text) catch |err| return switch (err) {
        error.BadRoot => diagnostics.damaged(diagnostic, root_file.file_name, "is damaged", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, root_file.file_name),
        error.OutOfMemory => error.OutOfMemory,
    };
    if (live.options.writable and !root_file.is_writable(&root)) return diagnostics.newer(diagnostic, root_file.file_name);
    try take_root(live, &root, diagnostic);
}

fn root_text(live: anytype, diagnostic: *Diagnostic) Error!?[]u8 {
    return diagnostics.read_file(live.allocator, live.store, root_file.file_name, root_file.bytes_max, diagnostic);
}

fn take_root(live: anytype, root: *const root_file.Root, diagnostic: *Diagnostic) Error!void {
    if (live.begun and live.is_live and !std.mem.eql(u8, root.uuid, &live.uuid)) return diagnostics.replaced(diagnostic);
    if (live.begun and !same_parts(live, root.parts)) {
        // Of the same folder, or was it replaced?
        live.moved = live.is_live or holds_part_of(live, root.parts);
        return diagnostics.replaced(diagnostic);
    }
    const dtype = if (root.dtype) |name| scan.Dtype.of(name) else try dtype_of_part(live, root, diagnostic);
    if (root.uuid.len != live.uuid.len) return diagnostics.damaged(diagnostic, root_file.file_name, "has a damaged uuid", .{});
    @memcpy(&live.uuid, root.uuid);
    live.is_live = true;
    live.generation = root.generation;
    live.dim = root.dim;
    live.dtype = dtype orelse return diagnostics.damaged(diagnostic, root_file.file_name, "names a type that is none", .{});
    if (root.ids) |name| {
        live.kind = std.meta.stringToEnum(rows_payload.Kind, name) orelse
            return diagnostics.damaged(diagnostic, root_file.file_name, "names ids that are none", .{});
    }
    live.has_rows = root_file.has_rows(root);
    live.has_columns = root_file.has_columns(root);
    if (root.schema) |text| try live.take_schema(text); // where it says none, the parts did
    const built = if (root.built) |text| try live.allocator.dupe(u8, text) else null;
    if (live.built) |before| live.allocator.free(before);
    live.built = built;
    live.requests.clear(live.allocator);
    for (root.requests) |one| try live.requests.add(live.allocator, one.request, one.sequence, one.rows, one.row);
    const metric = try live.allocator.dupe(u8, root.metric);
    live.allocator.free(live.metric);
    live.metric = metric;
    live.root_sequence = root.sequence;
    live.next_row = root.next_row;
    live.next_file = root.next_file;
    const name = try live.allocator.dupe(u8, root.first_log);
    if (live.log_name) |before| live.allocator.free(before);
    live.log_name = name;
    if (same_parts(live, root.parts)) {
        for (live.parts.items, root.parts) |*part, named| {
            const path = try live.allocator.dupe(u8, named.path);
            live.allocator.free(part.path);
            part.path = path;
            const file = if (named.dead) |dead| try live.allocator.dupe(u8, dead) else null;
            if (part.file) |before| live.allocator.free(before);
            part.file = file;
        }
        return;
    }
    live.forget_parts();
    for (root.parts) |part| try live.add_part(part.path, part.uuid, part.n, part.dead);
}

/// Roots of the first version do not say it; their part does.
fn dtype_of_part(live: anytype, root: *const root_file.Root, diagnostic: *Diagnostic) Error!?scan.Dtype {
    if (root.parts.len == 0) return null;
    var buffer: [128]u8 = undefined;
    const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ root.parts[0].path, "manifest.json" }) catch unreachable; // root.zig limits it
    var parsed = try adopting.read_manifest(live, name, diagnostic);
    defer parsed.deinit();
    return scan.Dtype.of(parsed.value.dtype);
}

/// A static index that became live has the part that it was.
fn holds_part_of(live: anytype, named: []const root_file.Part) bool {
    for (live.parts.items) |part| {
        for (named) |other| if (std.mem.eql(u8, part.uuid, other.uuid)) return true;
    }
    return false;
}

/// The parts that are open already, which keep their ids. A part of no name is what the first of a live folder was.
fn same_parts(live: anytype, named: []const root_file.Part) bool {
    if (named.len != live.parts.items.len) return false;
    for (live.parts.items, named) |part, other| {
        if (part.n != other.n or !std.mem.eql(u8, part.uuid, other.uuid)) return false;
        if (part.path.len > 0 and !std.mem.eql(u8, part.path, other.path)) return false;
    }
    return true;
}

/// What others have written since, or all that there is. Says whether anything changed.
pub fn look(live: anytype, begin_again: bool, diagnostic: *Diagnostic) Error!bool {
    const sequence = live.sequence;
    const generation = live.generation;
    const schema_version = live.schema_version;
    var again = begin_again;
    var attempt: u32 = 1;
    // Of the root whose files could not be read.
    var failed_at: ?u64 = null;
    while (true) : (attempt += 1) {
        var read_generation: u64 = 0;
        look_once(live, if (again) null else generation, &read_generation, diagnostic) catch |err| switch (err) {
            // A checkpoint may have taken away what the root that was read names, or a write been taken back. Where the same
            // root fails again it is damage.
            error.Corrupt => if (failed_at == read_generation or attempt == moment.attempts_max) return err else {
                failed_at = read_generation;
                again = true;
                continue;
            },
            else => return err,
        };
        return live.sequence != sequence or live.schema_version != schema_version;
    }
}

/// `generation` is the one whose log was read up to `position`; null: from the start. Where it fails, what is dead
/// stays as it was. `read_generation` becomes that of the root that was read.
fn look_once(live: anytype, generation: ?u64, read_generation: *u64, diagnostic: *Diagnostic) Error!void {
    const was_live = live.is_live;
    live.moved = false;
    errdefer {
        read_generation.* = live.generation;
        live.generation = 0; // the next look begins from the start
    }
    read_root(live, diagnostic) catch |err| return switch (err) {
        error.NotAnIndex => diagnostics.replaced(diagnostic), // and its files are gone
        else => err,
    };
    if (!live.is_live) return;
    if (was_live and generation == live.generation) {
        _ = try replaying.replay(live, false, diagnostic);
        return;
    }
    var arena = std.heap.ArenaAllocator.init(live.allocator);
    defer arena.deinit();
    const before = try arena.allocator().alloc([]const u64, live.parts.items.len);
    for (live.parts.items, before) |part, *words| words.* = try arena.allocator().dupe(u64, part.dead.words);
    const delta_before = live.delta.hold();
    defer delta_before.release();
    errdefer {
        live.delta.release();
        live.delta = delta_before.hold();
        for (live.parts.items, before) |*part, words| {
            @memcpy(part.dead.words, words);
            part.dead_count = part.dead.count();
        }
    }
    _ = try replaying.replay_all(live, diagnostic);
    live.layout += 1; // another delta: who keeps rows of the former one has to read them again
}
