//! From an index as it was built to live data: its files get a second name in a part, live.json names the part, and the
//! names in the folder itself go, the manifest first. An older velo then finds no index rather than a wrong one.
//!
//! Killed before live.json is there, the folder is the index it was, and what stands beside is litter; killed after, the
//! next writer takes the rest of the old names away.
const std = @import("std");
const layout = @import("layout");
const checkpoints = @import("checkpoint.zig");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const file_error = diagnostics.file_error;
const scan = @import("scan.zig");
const manifest = layout.manifest;

/// An index without live.json: one part, the folder itself.
pub fn describe(live: anytype, diagnostic: *Diagnostic) Error!void {
    var parsed = try read_manifest(live, manifest.file_name, diagnostic);
    defer parsed.deinit();
    const found = &parsed.value;
    for (live.parts.items) |*part| {
        if (part.n == found.n and std.mem.eql(u8, part.uuid, found.uuid)) return; // as before
    }
    if (live.begun) return diagnostics.replaced(diagnostic);
    live.dim = found.dim;
    live.dtype = scan.Dtype.of(found.dtype) orelse return diagnostics.damaged(diagnostic, manifest.file_name, "names a type that is none", .{});
    const metric = try live.allocator.dupe(u8, found.metric);
    live.allocator.free(live.metric);
    live.metric = metric;
    try live.add_part("", found.uuid, found.n, null);
}

pub fn read_manifest(live: anytype, name: []const u8, diagnostic: *Diagnostic) Error!manifest.Parsed {
    const text = try diagnostics.read_file(live.allocator, live.store, name, manifest.bytes_max, diagnostic) orelse {
        diagnostic.say("the folder holds no index", .{});
        return error.NotAnIndex;
    };
    defer live.allocator.free(text);
    return manifest.parse(live.allocator, text) catch |err| switch (err) {
        error.BadManifest => diagnostics.damaged(diagnostic, manifest.file_name, "is damaged", .{}),
        error.NewerVersion => diagnostics.newer(diagnostic, manifest.file_name),
        error.OlderVersion => {
            diagnostic.in_file(manifest.file_name, "the index was written by an older velo: build it again", .{});
            return error.UnsupportedVersion;
        },
        error.OutOfMemory => error.OutOfMemory,
    };
}

/// The first write, with the lock held: when this returns the folder is live and its log empty.
pub fn adopt(live: anytype, diagnostic: *Diagnostic) Error!void {
    const store = live.store;
    const part = &live.parts.items[0];
    if (part.finder == null) try live.open_finder(part, diagnostic);
    live.prng.source.fill(live.uuid[0..16]);
    const raw: [16]u8 = live.uuid[0..16].*;
    _ = std.fmt.bufPrint(&live.uuid, "{x}", .{&raw}) catch unreachable;
    const built = try live.allocator.dupe(u8, part.uuid);
    if (live.built) |before| live.allocator.free(before);
    live.built = built;
    live.next_file = 2;
    var adopted = part.*;
    adopted.path = try live.allocator.dupe(u8, "part-0000000000000001");
    errdefer if (!live.is_live) live.allocator.free(adopted.path);
    make_part(live, adopted.path, diagnostic) catch |err| {
        store.remove_folder(adopted.path) catch {}; // litter: the next try takes it away
        return err;
    };
    checkpoints.make_anew(live, @as([]@TypeOf(adopted), (&adopted)[0..1]), live.delta, diagnostic) catch |err| {
        if (!live.poisoned) store.remove_folder(adopted.path) catch {};
        return err;
    };
    {
        live.seen.lock();
        defer live.seen.unlock();
        live.allocator.free(part.path);
        part.* = adopted;
        live.show_all();
    }
    live.is_live = true;
    remove_old_names(live, diagnostic) catch |err| {
        live.poisoned = true;
        return err;
    };
}

fn make_part(live: anytype, path: []const u8, diagnostic: *Diagnostic) Error!void {
    const store = live.store;
    var parsed = try read_manifest(live, manifest.file_name, diagnostic);
    defer parsed.deinit();
    if (!std.mem.eql(u8, parsed.value.uuid, live.parts.items[0].uuid)) {
        diagnostic.say("the index was replaced by another one: open it again", .{});
        return error.Unsupported;
    }
    store.remove_folder(path) catch |err| return file_error(diagnostic, path, "remove", err);
    store.make_folder(path) catch |err| return file_error(diagnostic, path, "create", err);
    for (parsed.value.files) |file| try link_into(store, path, file.name, diagnostic);
    try link_into(store, path, manifest.file_name, diagnostic);
    var buffer: [128]u8 = undefined;
    const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, find.file_name }) catch unreachable; // our own short names
    try diagnostics.write_file(store, name, live.parts.items[0].finder_owned.?, diagnostic);
    try diagnostics.sync_folder(store, path, diagnostic);
}

fn link_into(store: anytype, path: []const u8, name: []const u8, diagnostic: *Diagnostic) Error!void {
    var buffer: [512]u8 = undefined;
    const to = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, name }) catch
        return diagnostics.damaged(diagnostic, manifest.file_name, "names a file whose name is too long", .{});
    store.link(name, to) catch |err| switch (@as(anyerror, err)) {
        error.FileNotFound => return diagnostics.damaged(diagnostic, name, "is missing from the index", .{}),
        // File systems without hard links.
        error.PermissionDenied, error.AccessDenied => {
            diagnostic.in_file(name, "the file system gives {s} no second name, which live data needs", .{name});
            return error.Unsupported;
        },
        else => return file_error(diagnostic, name, "link", err),
    };
}

/// The manifest is gone for good before anything is acknowledged; the other names may go whenever.
pub fn remove_old_names(live: anytype, diagnostic: *Diagnostic) Error!void {
    const store = live.store;
    store.remove(manifest.file_name) catch |err| switch (@as(anyerror, err)) {
        error.FileNotFound => {},
        else => return file_error(diagnostic, manifest.file_name, "remove", err),
    };
    try diagnostics.sync_folder(store, ".", diagnostic);
    var arena = std.heap.ArenaAllocator.init(live.allocator);
    defer arena.deinit();
    const names = store.list(arena.allocator()) catch |err| return file_error(diagnostic, ".", "list", err);
    if (live.parts.items.len == 0) return;
    var buffer: [512]u8 = undefined;
    for (names) |name| {
        const inside = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ live.parts.items[0].path, name }) catch continue;
        if (store.exists(inside) catch false) diagnostics.discard(store, name);
    }
}
